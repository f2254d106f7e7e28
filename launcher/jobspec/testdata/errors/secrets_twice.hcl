job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  secrets = [
    "A",
    "A", # error: Secret "A" is named twice
  ]
}
