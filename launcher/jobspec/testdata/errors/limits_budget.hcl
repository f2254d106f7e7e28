job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  limits {
    budget_usd       = 0 # error: Wrong value for "budget_usd"
    max_usd_per_hour = "$12" # error: Wrong type for "max_usd_per_hour"
  }
}
