job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  elastic {
    below_min = ["1m"] # error: Wrong type for "below_min"
  }
}
