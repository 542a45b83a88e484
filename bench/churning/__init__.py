"""The parts of ``bench/churn.py`` and ``bench/curve.py``."""
