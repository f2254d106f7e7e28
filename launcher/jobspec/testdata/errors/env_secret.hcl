# env: WANDB_API_KEY=s3cr3t
job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  env = {
    WANDB_API_KEY = env("WANDB_API_KEY") # warning: "WANDB_API_KEY" in env looks like a secret
  }
}
