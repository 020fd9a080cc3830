"""Training of Keras models on Spark DataFrames."""
