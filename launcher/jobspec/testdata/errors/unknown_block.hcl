job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  limts { # error: Unknown block "limts"
    budget_usd = 1
  }
}
