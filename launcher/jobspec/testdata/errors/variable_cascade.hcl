variable "none" { # error: Variable "none" has no value
}
job "demo" {
  provider "local" {
    root = var.none
  }
  workers {
    count = var.none
  }
  run "ranks" {
    command = "python train.py"
  }
  env = { A = var.none }
  limits {
    budget_usd = var.none
  }
}
