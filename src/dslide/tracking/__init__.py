"""Runs reported to services that keep experiments: MLflow, Weights & Biases.

dslide.train("train.txt", out="run", callbacks=[MLflowLog()])
"""

from dslide.tracking.mlflow import MLflowLog
from dslide.tracking.wandb import WandbLog

__all__ = ["MLflowLog", "WandbLog"]
