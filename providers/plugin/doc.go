// Package plugin puts a provider into a process of its own: the host's side, the plugin's, and finding and trusting the executable between.
//
// # A plugin
//
// A plugin is an executable named launcher-provider-NAME. In Go it is
//
//	func main() { plugin.Serve(mycloud.New()) }
//
// and in any language what provider.proto, beside this file, describes.
//
//	host (launcher up, launcher head)                plugin
//	  Resolve: find it, check launcher.lock
//	  first call: start it, bare of the caller's ──▶ Serve: handshake line on stdout
//	              environment; stdin is the lifeline
//	  Info ───────────────────────────────────────▶  needs no credentials
//	  start it again, with the variables that
//	  Info.CredentialEnv names; then each call ────▶ the provider
//	  it died: code plugin_gone for the calls in
//	  flight, the next call starts it again
//	  Close, or the host dies: end of file ─────────▶ calls are cancelled, the process ends
//
// The transport is go-plugin's (github.com/hashicorp/go-plugin v1.8.0): gRPC over a Unix socket in a folder that only
// the caller may enter, with mutual TLS by certificates made for this one process (AutoMTLS). The host takes what a
// plugin says for hostile when it parses it. It does not confine the plugin: whoever runs one trusts it with the
// account's rights, hence launcher.lock.
//
// # Trust
//
// An executable beside launcher's own is trusted like that. Any other is run only if launcher.lock, beside the job file,
// has its checksum; [LockError] says how to accept it. The checksum is looked at before every start.
package plugin
