"""FOA: prompts or a filter, searched by CMA-ES."""
