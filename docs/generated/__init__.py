"""What the tables of the documentation are made from; `docs/tables.py` writes them."""
