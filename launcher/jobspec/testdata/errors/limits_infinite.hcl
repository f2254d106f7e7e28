job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  limits {
    budget_usd = 1e999 # error: Wrong value for "budget_usd"
  }
}
