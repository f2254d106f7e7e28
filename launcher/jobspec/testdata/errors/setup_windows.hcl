job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  setup = "a\r\nb\r\n" # error: setup has Windows line ends
}
