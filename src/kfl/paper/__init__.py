"""The paper, figure by figure: experiments, tables, plots and the verdict on every claim."""
