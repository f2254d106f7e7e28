job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}

job "other" { # error: Only one "job" block is allowed
  provider "local" {}
  workers { count = 1 }
  run "ranks" { command = "true" }
}
