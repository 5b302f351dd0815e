"""Models, recipes and the choice of a recipe. Everything here is data or computed from data; nothing imports torch or a backend."""
