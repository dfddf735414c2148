"""Tests of looks, against real sockets, files and programs; and of who looks."""
