job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  setup = fiel("setup.sh") # error: Call to unknown function
}
