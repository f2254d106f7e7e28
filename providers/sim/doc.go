// Package sim is a seeded simulated cloud in memory. It is the reference implementation of [providers.Provider] and what
// the launcher's own tests rent from.
//
// It tells time with package time alone, so it runs in real time and, inside a testing/synctest bubble, in virtual time.
// Everything random is drawn from Options.Seed and the name of the thing drawn for (a machine's id, a call's token and
// count), never from a shared stream: the same seed and the same calls give the same cloud, whatever else happens beside
// them. Draws end in a few nanoseconds of seeded jitter, so that two events rarely share an instant.
//
// What a machine's guest does is the test's business: Options.OnBoot, OnNotice and OnStop attach it, [Cloud.Reached] and
// [Cloud.PowerOff] are what the guest tells the cloud. A machine bills until it is Terminated, and its guest lives until
// then: an accepted Delete proves nothing, here as elsewhere.
package sim
