"""What a run comes to: results, tables, pictures."""
