job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}

run "ranks" { # error: Unknown block "run"
  command = "true"
}
