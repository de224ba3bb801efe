# The README's commands. A fresh machine needs Python 3.11, pip, make and git.
PYTHON ?= python3
PIP = -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

WORKERS ?= 2  # processes that run the tests; a file stays with one, and so do its fixtures

.PHONY: run test lint clean

run: .venv-run/ready  ## adapt the embedded model to a corrupted stream (device dependencies only)
	.venv-run/bin/zotta-edge adapt

test: .venv-test/ready lint  ## linters, types and every test
	.venv-test/bin/pytest -n $(WORKERS) --dist loadfile

lint: .venv-test/ready
	.venv-test/bin/ruff check .
	.venv-test/bin/ruff format --check .
	.venv-test/bin/mypy -p zotta_edge
	.venv-test/bin/lint-imports

# Both install the package itself, not a link to the checkout: what is tested is what is shipped.
SOURCES = $(shell git ls-files export runtime calibration models src) pyproject.toml constraints.txt

.venv-run/ready: $(SOURCES)
	$(PYTHON) -m venv .venv-run
	.venv-run/bin/python $(PIP) .
	touch $@

# imagecorruptions comes without its dependencies: opencv-python, among them, would overwrite the
# headless OpenCV that is shipped. Later installs would warn of its absence.
.venv-test/ready: $(SOURCES)
	$(PYTHON) -m venv .venv-test
	.venv-test/bin/python $(PIP) --no-warn-conflicts '.[calibrate,export,serve,bench,dev]'
	.venv-test/bin/python $(PIP) --no-deps imagecorruptions
	touch $@

clean:
	rm -rf .venv-run .venv-test build dist *.egg-info
