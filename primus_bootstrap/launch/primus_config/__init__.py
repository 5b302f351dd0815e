"""Convert an experiment file of AMD Primus (https://github.com/AMD-AGI/Primus) to a configuration of the trainers here."""
