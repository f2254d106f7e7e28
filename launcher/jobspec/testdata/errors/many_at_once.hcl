job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  tgas = {}            # error: Unknown attribute "tgas"
  placement {
    prefer = "cheap"   # error: Wrong value for "prefer"
  }
  limits {
    budget_usd = -1    # error: Wrong value for "budget_usd"
    max_duration = 3   # error: Wrong value for "max_duration"
  }
}
