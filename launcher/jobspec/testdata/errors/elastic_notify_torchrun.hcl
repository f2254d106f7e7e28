job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "torchrun" {
    command = "torchrun a.py"
  }
  elastic {
    on_change = "notify" # error: Wrong value for "on_change"
  }
}
