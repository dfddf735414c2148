"""The pages of coordctl web on real daemons, in Debian's Chromium."""
