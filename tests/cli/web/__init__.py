"""The pages of coordctl web: who comes in, what is drawn, what is sent, and what a browser makes of it."""
