"""Peaks learned from parameters. Needs scikit-learn (`pip install 'vrampool[learn]'`); nothing else imports it."""
