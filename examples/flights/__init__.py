"""The parts of `flights_demo.py`: input, a foreign client, Spark, and how results are shown."""
