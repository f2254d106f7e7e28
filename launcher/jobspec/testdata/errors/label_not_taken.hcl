job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  limits "x" { # error: "limits" takes no label
    budget_usd = 1
  }
}
