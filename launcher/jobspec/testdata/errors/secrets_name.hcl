job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  secrets = ["wandb-key"] # error: Wrong variable name "wandb-key"
}
