"""Read results and history, build the commands of a bench, and store it on the controller."""
