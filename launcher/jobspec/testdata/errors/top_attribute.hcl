budget_usd = 40 # error: Unknown attribute "budget_usd"
job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}
