job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  network {
    ssh_from = [
      "10.0.0.5",     # error: Wrong value for "ssh_from"
      "10.0.0.5/8",   # error: Wrong value for "ssh_from"
      "office",       # error: Wrong value for "ssh_from"
      "caler",        # error: Wrong value for "ssh_from"
      "0.0.0.0/0",    # warning: Port 22 of the head is open to everybody
    ]
  }
}
