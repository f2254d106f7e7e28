job "demo" { # error: Missing block "provider"
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}
