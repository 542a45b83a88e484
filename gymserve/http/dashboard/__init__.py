"""The dashboard: a page for people. Its files tell nothing; what it shows it asks for, as any client does."""
