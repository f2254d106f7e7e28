job "demo" {
  provider "local" {
    usd_per_hour = 0.1 # error: Wrong type for "usd_per_hour"
  }
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}
