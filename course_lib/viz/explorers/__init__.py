"""The explorers, one module and one script each."""
