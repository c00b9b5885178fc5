package ledger

type observer struct{}

type account struct{}
