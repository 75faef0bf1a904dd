"""Results as people see them: tables, charts, pages."""
