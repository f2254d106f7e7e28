job "demo" {
  provider "local" {
    hang_timeout = "1s" # error: Unknown attribute "hang_timeout"
  }
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}
