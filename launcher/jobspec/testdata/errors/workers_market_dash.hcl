job "demo" {
  provider "local" {}
  workers {
    count  = 2
    market = "on-demand" # error: Wrong value for "market"
  }
  run "ranks" {
    command = "python train.py"
  }
}
