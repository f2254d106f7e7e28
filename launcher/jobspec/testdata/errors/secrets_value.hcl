job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  secrets = [
    "HF_TOKEN=abc", # error: A secret is given by its name
  ]
}
