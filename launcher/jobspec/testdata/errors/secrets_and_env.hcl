job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  env     = { TOKEN = "x" }
  secrets = ["TOKEN"] # error: "TOKEN" is in env and in secrets
}
