"""Results for people: tables and figures."""
