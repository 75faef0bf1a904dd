"""Results for users: tables, charts, pages."""
