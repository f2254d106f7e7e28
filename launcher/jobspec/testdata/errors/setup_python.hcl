job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  setup = "#!/usr/bin/env python3\nprint(1)\n" # error: setup is run by bash
}
