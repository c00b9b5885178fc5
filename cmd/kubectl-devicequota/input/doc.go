// Package input reads manifests: files, folders and standard input, YAML and JSON, one or many
// objects each. It is strict: a field that the kind does not have is an error, and every error
// names the file and the line. Kinds that have nothing to do with devices are skipped.
package input
