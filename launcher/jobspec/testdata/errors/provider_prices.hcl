job "demo" {
  provider "aws" {
    usd_per_hour = {
      spot      = -1 # error: Wrong value for "usd_per_hour"
      on_demand = "x" # error: Wrong type for "usd_per_hour"
    }
  }
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}
