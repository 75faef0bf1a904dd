"""How results look: tables (`table`), sentences (`words`), charts and pages. Nothing is computed here."""
