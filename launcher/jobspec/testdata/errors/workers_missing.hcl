job "demo" { # error: Missing block "workers"
  provider "local" {}
  run "ranks" {
    command = "python train.py"
  }
}
