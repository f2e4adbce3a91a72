// All work that must happen in bulk inside the driver's JVM: one call here instead of one py4j call per file
// (2,000 objects a second). Compiled on first use by Janino, which Spark ships, so there are no generics and no
// lambdas. This code decides nothing: Python plans and makes every choice; this code only passes values and
// calls Iceberg's library.
package lakewarden;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.function.Function;
import java.util.function.Predicate;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.iceberg.CachingCatalog;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DataFiles;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.FileContent;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.HasTableOperations;
import org.apache.iceberg.ManifestFile;
import org.apache.iceberg.Metrics;
import org.apache.iceberg.MetricsConfig;
import org.apache.iceberg.NullOrder;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.RewriteFiles;
import org.apache.iceberg.RewriteManifests;
import org.apache.iceberg.SchemaParser;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.SnapshotAncestryValidator;
import org.apache.iceberg.SortOrder;
import org.apache.iceberg.StructLike;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableMetadataParser;
import org.apache.iceberg.TableScan;
import org.apache.iceberg.actions.RewriteFileGroup;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.expressions.Expression;
import org.apache.iceberg.expressions.ExpressionParser;
import org.apache.iceberg.hadoop.HadoopCatalog;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.CloseableIterator;
import org.apache.iceberg.parquet.ParquetUtil;
import org.apache.iceberg.spark.actions.RewriteManifestsSparkAction;
import org.apache.iceberg.spark.actions.SparkActions;
import org.apache.iceberg.types.Type;
import org.apache.iceberg.types.TypeUtil;
import org.apache.iceberg.types.Types;
import org.apache.iceberg.util.ContentFileUtil;
import org.apache.iceberg.util.StructLikeWrapper;
import org.apache.iceberg.util.ThreadPools;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.TableCatalog;

public final class IcebergBridge {
  private static final ObjectMapper JSON = new ObjectMapper();

  /** The files of one snapshot. Python sees them as Arrow; the library's own objects stay here for the commit. */
  public static final class Scan {
    public final Map tasks = new HashMap();
    public final Map partitionOf = new HashMap();
    // Several threads add to it at once: groups are written and committed in parallel.
    public final Map outputs = new ConcurrentHashMap();
    public final List partitions = new ArrayList();
    public final List partitionSpecs = new ArrayList();
    final ArrayNode described = JSON.createArrayNode();
    // Every delete file that applies to some data file, once. Python names them by their index here or by their
    // key.
    public final Map deletesByKey = new ConcurrentHashMap();
    final Map deletePlaces = new HashMap();
    final ArrayNode describedDeletes = JSON.createArrayNode();

    public String partitions() {
      return described.toString();
    }

    public String deletes() {
      return describedDeletes.toString();
    }

    int place(DeleteFile file) {
      String key = key(file);
      Integer place = (Integer) deletePlaces.get(key);
      if (place == null) {
        place = Integer.valueOf(deletePlaces.size());
        deletePlaces.put(key, place);
        deletesByKey.put(key, file);
        describeDelete(describedDeletes.addObject(), file);
      }
      return place.intValue();
    }

    public DeleteFile delete(String key) {
      Object file = deletesByKey.get(key);
      if (file == null) {
        throw new IllegalArgumentException("not a delete file of this scan: " + key);
      }
      return (DeleteFile) file;
    }

    /** Keep only the files that the plan names, so that a table with millions of files does not stay in memory. */
    public void retain(String pathsJson) throws Exception {
      Set kept = new HashSet(Arrays.asList((String[]) JSON.readValue(pathsJson, String[].class)));
      tasks.keySet().retainAll(kept);
      partitionOf.keySet().retainAll(kept);
    }

    public DataFile output(String path) {
      Object file = outputs.get(path);
      if (file == null) {
        throw new IllegalArgumentException("not an output of this run: " + path);
      }
      return (DataFile) file;
    }

    DataFile file(String path) {
      Object task = tasks.get(path);
      if (task == null) {
        throw new IllegalArgumentException("not in this scan: " + path);
      }
      return (DataFile) ((FileScanTask) task).file();
    }
  }

  /** One Puffin file holds the vectors of many data files: only path and offset together identify a vector. */
  public static String key(DeleteFile file) {
    return file.contentOffset() == null ? file.location() : file.location() + "#" + file.contentOffset();
  }

  public static void describeDelete(ObjectNode row, DeleteFile file) {
    boolean vector = file.contentOffset() != null;
    boolean equality = file.content() == FileContent.EQUALITY_DELETES;
    row.put("key", key(file));
    row.put("kind", equality ? "equality" : vector ? "vector" : "position");
    row.put("path", file.location());
    row.put("format", file.format().name().toLowerCase());
    row.put("bytes", vector ? file.contentSizeInBytes().longValue() : file.fileSizeInBytes());
    row.put("records", file.recordCount());
    row.put("sequence_number", file.dataSequenceNumber() == null ? 0L : file.dataSequenceNumber().longValue());
    row.put("content_offset", vector ? file.contentOffset().longValue() : 0L);
    row.put("content_size", vector ? file.contentSizeInBytes().longValue() : 0L);
    String referenced = equality ? null : ContentFileUtil.referencedDataFileLocation(file);
    row.put("referenced", referenced == null ? "" : referenced);
    row.put("encrypted", file.keyMetadata() != null);
    ArrayNode ids = row.putArray("equality_ids");
    if (equality) {
      for (int i = 0; i < file.equalityFieldIds().size(); i++) {
        ids.add(((Integer) file.equalityFieldIds().get(i)).intValue());
      }
    }
  }

  // Janino sees two `get` methods in JsonNode, one returning an interface without values; these call the right
  // one.
  private static JsonNode at(JsonNode node, int index) {
    return (JsonNode) node.get(index);
  }

  private static JsonNode at(JsonNode node, String key) {
    return (JsonNode) node.get(key);
  }

  // ---------------------------------------------------------------- reading

  public Table load(Catalog catalog, String identJson) throws Exception {
    String[] parts = (String[]) JSON.readValue(identJson, String[].class);
    TableIdentifier ident = TableIdentifier.of(parts);
    // A catalog from outside may cache tables: never plan from a table that it loaded earlier.
    catalog.invalidateTable(ident);
    lookAgain(uncached(catalog));
    return catalog.loadTable(ident);
  }

  /** Every table of a catalog, found through Spark's own catalog, so that a caching or session catalog can list too. */
  public String tables(SparkSession spark, String catalog, String warehouse) throws Exception {
    Object plugin = ((org.apache.spark.sql.classic.SparkSession) spark).sessionState().catalogManager().catalog(catalog);
    Object library = uncached(org.apache.iceberg.spark.Spark3Util.loadIcebergCatalog(spark, catalog));
    lookAgain(library);
    ArrayNode found = JSON.createArrayNode();
    collectRootTables((TableCatalog) plugin, found);
    if (library instanceof HadoopCatalog) {
      collectFolders(((HadoopCatalog) library).getConf(), warehouse, found);
    }
    collectTables((TableCatalog) plugin, (SupportsNamespaces) plugin, ((SupportsNamespaces) plugin).listNamespaces(), found);
    return found.toString();
  }

  /** The catalog inside the cache that Spark's catalogs have by default. The cache offers no public access to it. */
  private static Object uncached(Catalog catalog) throws Exception {
    if (!(catalog instanceof CachingCatalog)) {
      return catalog;
    }
    return value(catalog, CachingCatalog.class, "catalog");
  }

  /**
   * Nessie's client lists namespaces and tables as of the last commit it saw: changes by other clients are
   * missing for the whole life of the session. Every other catalog asks its server each time.
   */
  private static void lookAgain(Object catalog) throws Exception {
    if (!catalog.getClass().getName().endsWith(".NessieCatalog")) {
      return;
    }
    Object client = value(catalog, catalog.getClass(), "client");
    try {
      client.getClass().getMethod("refresh", new Class[0]).invoke(client, new Object[0]);
    } catch (java.lang.reflect.InvocationTargetException e) {
      throw (Exception) e.getCause();
    }
  }

  private static Object value(Object of, Class declaring, String name) throws Exception {
    Field field = declaring.getDeclaredField(name);
    field.setAccessible(true);
    return field.get(of);
  }

  /** Tables without a namespace. Catalogs that cannot have any reject the question, each in its own way. */
  private void collectRootTables(TableCatalog tables, ArrayNode found) throws Exception {
    Identifier[] here;
    try {
      here = tables.listTables(new String[0]);
    } catch (org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException none) {
      return;
    } catch (IllegalArgumentException none) {
      return;
    } catch (UnsupportedOperationException none) {
      return;
    } catch (org.apache.iceberg.exceptions.NoSuchNamespaceException none) {
      return;
    } catch (org.apache.iceberg.exceptions.ValidationException none) {
      return;
    }
    for (int i = 0; i < here.length; i++) {
      if (here[i].namespace().length == 0) {
        found.addArray().add(here[i].name());
      }
    }
  }

  /** A Hadoop catalog creates and loads tables without a namespace, but does not list them: they are folders of the warehouse. */
  private void collectFolders(Configuration conf, String warehouse, ArrayNode found) throws Exception {
    Path root = new Path(warehouse);
    FileSystem store = root.getFileSystem(conf);
    FileStatus[] here;
    try {
      here = store.listStatus(root);
    } catch (java.io.FileNotFoundException none) {
      return;
    }
    for (int i = 0; i < here.length; i++) {
      if (here[i].isDirectory() && isTable(store, here[i].getPath())) {
        found.addArray().add(here[i].getPath().getName());
      }
    }
  }

  /** Looks for metadata files named as a Hadoop catalog names them: it cannot load those of other catalogs. */
  private static boolean isTable(FileSystem store, Path folder) throws Exception {
    try {
      FileStatus[] files = store.listStatus(new Path(folder, "metadata"));
      for (int i = 0; i < files.length; i++) {
        if (files[i].getPath().getName().matches("v[0-9]+\\..*metadata\\.json(\\.gz)?")) {
          return true;
        }
      }
    } catch (java.io.FileNotFoundException none) {
      return false;
    }
    return false;
  }

  private void collectTables(TableCatalog tables, SupportsNamespaces tree, String[][] namespaces, ArrayNode found)
      throws Exception {
    for (int i = 0; i < namespaces.length; i++) {
      String[] at = namespaces[i];
      Identifier[] here = tables.listTables(at);
      for (int j = 0; j < here.length; j++) {
        ArrayNode row = found.addArray();
        for (int k = 0; k < at.length; k++) {
          row.add(at[k]);
        }
        row.add(here[j].name());
      }
      collectTables(tables, tree, tree.listNamespaces(at), found);
    }
  }

  /** The properties to reach the table's files; empty if the FileIO does not provide them. */
  public String ioProperties(Table table) throws Exception {
    try {
      return JSON.writeValueAsString(table.io().properties());
    } catch (UnsupportedOperationException none) {
      return "{}";
    }
  }

  public String metadata(Table table) {
    return TableMetadataParser.toJson(current(table));
  }

  public String metadataLocation(Table table) {
    String location = current(table).metadataFileLocation();
    return location == null ? "" : location;
  }

  /** The table's uuid and its metadata file, which together identify one state of one table. */
  public String pointer(Table table) {
    return current(table).uuid() + " " + metadataLocation(table);
  }

  public static int formatVersion(Table table) {
    return current(table).formatVersion();
  }

  private static TableMetadata current(Table table) {
    return ((HasTableOperations) table).operations().current();
  }

  public String manifests(Table table, long snapshotId) {
    ArrayNode rows = JSON.createArrayNode();
    List manifests = table.snapshot(snapshotId).allManifests(table.io());
    for (int i = 0; i < manifests.size(); i++) {
      ManifestFile manifest = (ManifestFile) manifests.get(i);
      ObjectNode row = rows.addObject();
      row.put("path", manifest.path());
      row.put("bytes", manifest.length());
      row.put("spec_id", manifest.partitionSpecId());
      row.put("content", manifest.content().name().toLowerCase());
    }
    return rows.toString();
  }

  public String schema(Table table) {
    return SchemaParser.toJson(table.schema());
  }

  /** From the JSON that Python made of a parsed filter: no SQL reaches this code. */
  public Expression where(Table table, String json) {
    return ExpressionParser.fromJson(json, table.schema());
  }

  /** Every live data file of a snapshot, as one Arrow stream in a local file. */
  public Scan scan(Table table, long snapshotId, Expression filter, String statsJson, String arrowPath)
      throws Exception {
    TableScan planning = (TableScan) table.newScan().useSnapshot(snapshotId).ignoreResiduals();
    List stats = withStats(table, planning, (String[]) JSON.readValue(statsJson, String[].class));
    if (!stats.isEmpty()) {
      planning = (TableScan) planning.includeColumnStats(stats);
    }
    if (filter != null) {
      planning = (TableScan) planning.filter(filter);
    }
    Scan scan = new Scan();
    Map partitionIds = new HashMap();
    FileColumns columns = new FileColumns(arrowPath);
    CloseableIterable files = planning.planFiles();
    try {
      CloseableIterator each = files.iterator();
      while (each.hasNext()) {
        FileScanTask task = (FileScanTask) each.next();
        DataFile file = (DataFile) task.file();
        int partition = partitionId(scan, partitionIds, table, file);
        scan.tasks.put(file.location(), task);
        scan.partitionOf.put(file.location(), Integer.valueOf(partition));
        add(columns, scan, task, file, partition);
      }
      columns.end();
    } finally {
      files.close();
      columns.close();
    }
    return scan;
  }

  /** Columns whose statistics are needed, by their names in the snapshot's own schema; floats always, because of NaNs. */
  private static List withStats(Table table, TableScan planning, String[] wanted) {
    Set ids = new HashSet();
    for (int i = 0; i < wanted.length; i++) {
      ids.add(Integer.valueOf(table.schema().findField(wanted[i]).fieldId()));
    }
    Map fields = TypeUtil.indexById(planning.schema().asStruct());
    List names = new ArrayList();
    Iterator each = fields.entrySet().iterator();
    while (each.hasNext()) {
      Map.Entry entry = (Map.Entry) each.next();
      Type.TypeID type = ((Types.NestedField) entry.getValue()).type().typeId();
      if (ids.contains(entry.getKey()) || type == Type.TypeID.FLOAT || type == Type.TypeID.DOUBLE) {
        names.add(planning.schema().findColumnName(((Integer) entry.getKey()).intValue()));
      }
    }
    return names;
  }

  private int partitionId(Scan scan, Map known, Table table, DataFile file) {
    PartitionSpec spec = (PartitionSpec) table.specs().get(Integer.valueOf(file.specId()));
    Map ofSpec = (Map) known.get(Integer.valueOf(spec.specId()));
    if (ofSpec == null) {
      ofSpec = new HashMap();
      known.put(Integer.valueOf(spec.specId()), ofSpec);
    }
    StructLikeWrapper key = StructLikeWrapper.forType(spec.partitionType()).set(file.partition());
    Integer id = (Integer) ofSpec.get(key);
    if (id == null) {
      id = Integer.valueOf(scan.partitions.size());
      ofSpec.put(key, id);
      scan.partitions.add(file.partition());
      scan.partitionSpecs.add(spec);
      describe(scan.described.addObject(), spec, file.partition());
    }
    return id.intValue();
  }

  private void describe(ObjectNode row, PartitionSpec spec, StructLike partition) {
    row.put("spec_id", spec.specId());
    row.put("path", spec.isUnpartitioned() ? "" : spec.partitionToPath(partition));
    ArrayNode values = row.putArray("values");
    for (int i = 0; i < partition.size(); i++) {
      Object value = partition.get(i, Object.class);
      if (value == null) {
        values.addNull();
      } else if (value instanceof Integer) {
        values.add(((Integer) value).intValue());
      } else if (value instanceof Long) {
        values.add(((Long) value).longValue());
      } else {
        values.add(value.toString());
      }
    }
  }

  private static void add(FileColumns columns, Scan scan, FileScanTask task, DataFile file, int partition)
      throws Exception {
    List applying = task.deletes();
    int[] places = new int[applying.size()];
    int equality = 0;
    for (int i = 0; i < places.length; i++) {
      DeleteFile each = (DeleteFile) applying.get(i);
      equality += each.content() == FileContent.EQUALITY_DELETES ? 1 : 0;
      places[i] = scan.place(each);
    }
    columns.add(
        partition,
        file.location(),
        file.format().name().toLowerCase(),
        file.fileSizeInBytes(),
        file.recordCount(),
        file.dataSequenceNumber() == null ? 0L : file.dataSequenceNumber().longValue(),
        file.fileSequenceNumber() == null ? 0L : file.fileSequenceNumber().longValue(),
        file.firstRowId(),
        places.length - equality,
        equality,
        file.keyMetadata() != null,
        // A file whose writer stated no offsets counts as one row group.
        file.splitOffsets() == null ? 1 : Math.max(1, file.splitOffsets().size()),
        file.sortOrderId(),
        places);
  }

  // ---------------------------------------------------------------- writing

  /** The paths of new data files, from the table's own location provider: [[partition, name], ...] -> [path, ...]. */
  public String locations(Table table, Scan scan, String requestJson) throws Exception {
    JsonNode request = JSON.readTree(requestJson);
    ArrayNode paths = JSON.createArrayNode();
    for (int i = 0; i < request.size(); i++) {
      JsonNode pair = at(request, i);
      int partition = at(pair, 0).asInt();
      PartitionSpec spec = (PartitionSpec) scan.partitionSpecs.get(partition);
      String name = at(pair, 1).asText();
      paths.add(spec.isUnpartitioned()
          ? table.locationProvider().newDataLocation(name)
          : table.locationProvider().newDataLocation(spec, (StructLike) scan.partitions.get(partition), name));
    }
    return paths.toString();
  }

  /**
   * One atomic `replace` snapshot that removes the sources and adds the outputs. On every attempt, the library
   * checks that each source still exists and that no delete for it arrived since `from_snapshot`.
   *
   * The commit may also remove delete files that nothing else needs. That was judged on one snapshot
   * (`parent`), so the commit must build on exactly that one: a file with an old sequence number could have
   * been added under these deletes since then. The same applies if the outputs keep the newest sequence number
   * of the sources (`keep_number`): the library then does not check for equality deletes, and drops one that
   * only the outputs need, so the base snapshot must have none.
   */
  public void rewrite(Table table, Scan scan, String requestJson) throws Exception {
    JsonNode request = JSON.readTree(requestJson);
    RewriteFiles rewrite = table.newRewrite().validateFromSnapshot(at(request, "from_snapshot").asLong());
    String branch = at(request, "branch").asText();
    if (!"main".equals(branch)) {
      rewrite.toBranch(branch);
    }
    JsonNode removed = at(request, "removed");
    for (int i = 0; i < removed.size(); i++) {
      rewrite.deleteFile(scan.file(at(removed, i).asText()));
    }
    if (at(request, "keep_number").asBoolean()) {
      long newest = 0L;
      for (int i = 0; i < removed.size(); i++) {
        newest = Math.max(newest, scan.file(at(removed, i).asText()).dataSequenceNumber().longValue());
      }
      if (newest > 0L) { // files written as format version 1 have none
        rewrite.dataSequenceNumber(newest);
      }
    }
    JsonNode added = at(request, "added");
    for (int i = 0; i < added.size(); i++) {
      rewrite.addFile(scan.output(at(added, i).asText()));
    }
    JsonNode droppedDeletes = at(request, "removed_deletes");
    for (int i = 0; i < droppedDeletes.size(); i++) {
      rewrite.deleteFile(scan.delete(at(droppedDeletes, i).asText()));
    }
    JsonNode addedDeletes = at(request, "added_deletes");
    for (int i = 0; i < addedDeletes.size(); i++) {
      JsonNode each = at(addedDeletes, i);
      DeleteFile file = scan.delete(at(each, "key").asText());
      if (at(each, "sequence_number").isNull()) {
        rewrite.addFile(file);
      } else {
        rewrite.addFile(file, at(each, "sequence_number").asLong());
      }
    }
    if (!at(request, "parent").isNull()) {
      rewrite.validateWith(onTopOf(at(request, "parent").asLong()));
    }
    JsonNode summary = at(request, "summary");
    Iterator keys = summary.fieldNames();
    while (keys.hasNext()) {
      String key = (String) keys.next();
      rewrite.set(key, at(summary, key).asText());
    }
    rewrite.commit();
  }

  private static SnapshotAncestryValidator onTopOf(final long parent) {
    return new SnapshotAncestryValidator() {
      // The compiled method has an erased parameter; Janino needs this form.
      public boolean validate(Iterable ancestry) {
        Iterator newest = ancestry.iterator();
        return newest.hasNext() && ((Snapshot) newest.next()).snapshotId() == parent;
      }

      public String errorMessage() {
        return "another commit came first";
      }
    };
  }

  /** Data files for the kernels' outputs, described from their footers; outputs of Iceberg's own writer are known already. */
  public void describeOutputs(final Table table, final Scan scan, String addedJson) throws Exception {
    JsonNode added = JSON.readTree(addedJson);
    List pending = new ArrayList();
    for (int i = 0; i < added.size(); i++) {
      final JsonNode each = at(added, i);
      if (scan.outputs.containsKey(at(each, "path").asText())) {
        continue;
      }
      pending.add(ThreadPools.getWorkerPool().submit(new Callable() {
        public Object call() {
          return dataFile(table, scan, each);
        }
      }));
    }
    for (int i = 0; i < pending.size(); i++) {
      try {
        DataFile file = (DataFile) ((Future) pending.get(i)).get();
        scan.outputs.put(file.location(), file);
      } catch (ExecutionException e) {
        throw (Exception) e.getCause();
      }
    }
  }

  private static DataFile dataFile(Table table, Scan scan, JsonNode each) {
    String path = at(each, "path").asText();
    int partition = at(each, "partition").asInt();
    PartitionSpec spec = (PartitionSpec) scan.partitionSpecs.get(partition);
    // The footer of the output gives the metrics, in the table's own metrics modes.
    Metrics footer = ParquetUtil.fileMetrics(table.io().newInputFile(path), MetricsConfig.forTable(table));
    Metrics metrics = withNanCounts(table, scan, footer, each);
    DataFiles.Builder builder = DataFiles.builder(spec);
    builder.withPath(path);
    builder.withFileSizeInBytes(at(each, "bytes").asLong());
    builder.withFormat(FileFormat.PARQUET);
    builder.withMetrics(metrics);
    if (!spec.isUnpartitioned()) {
      builder.withPartition((StructLike) scan.partitions.get(partition));
    }
    Object order = table.sortOrders().get(Integer.valueOf(at(each, "sort_order_id").asInt()));
    if (order != null) {
      builder.withSortOrder((SortOrder) order);
    }
    List offsets = new ArrayList();
    JsonNode split = at(each, "split_offsets");
    for (int i = 0; i < split.size(); i++) {
      offsets.add(Long.valueOf(at(split, i).asLong()));
    }
    builder.withSplitOffsets(offsets);
    return builder.build();
  }

  /**
   * Footers do not count NaNs, and Iceberg reads a column without a count as one without NaNs: a delete that
   * checks only the bounds would then drop them with the file. The kernel counts NaNs in the values it writes;
   * for copied pages the sources' counts are added up; if neither is known, the column states no bounds.
   */
  private static Metrics withNanCounts(Table table, Scan scan, Metrics footer, JsonNode each) {
    Map lower = footer.lowerBounds() == null ? new HashMap() : new HashMap(footer.lowerBounds());
    Map upper = footer.upperBounds() == null ? new HashMap() : new HashMap(footer.upperBounds());
    Map counts = new HashMap();
    Iterator fields = TypeUtil.indexById(table.schema().asStruct()).entrySet().iterator();
    while (fields.hasNext()) {
      Map.Entry entry = (Map.Entry) fields.next();
      Type.TypeID type = ((Types.NestedField) entry.getValue()).type().typeId();
      if (type != Type.TypeID.FLOAT && type != Type.TypeID.DOUBLE) {
        continue;
      }
      Long count = nanCount(scan, each, (Integer) entry.getKey());
      if (count == null) {
        lower.remove(entry.getKey());
        upper.remove(entry.getKey());
      } else if (footer.valueCounts() != null && footer.valueCounts().containsKey(entry.getKey())) {
        counts.put(entry.getKey(), count);
      }
    }
    return new Metrics(footer.recordCount(), footer.columnSizes(), footer.valueCounts(), footer.nullValueCounts(),
        counts, lower, upper);
  }

  private static Long nanCount(Scan scan, JsonNode each, Integer id) {
    JsonNode counted = at(at(each, "nan_counts"), id.toString());
    if (counted != null) {
      return Long.valueOf(counted.asLong());
    }
    JsonNode sources = at(each, "copied_from");
    if (sources.size() == 0) {
      return null;
    }
    long total = 0L;
    for (int i = 0; i < sources.size(); i++) {
      Map known = scan.file(at(sources, i).asText()).nanValueCounts();
      if (known == null || !known.containsKey(id)) {
        return null;
      }
      total += ((Long) known.get(id)).longValue();
    }
    return Long.valueOf(total);
  }

  /** The snapshot whose summary has all of these keys, newest first; -1 if there is none. */
  public long findSnapshot(Table table, String keysJson) throws Exception {
    JsonNode wanted = JSON.readTree(keysJson);
    long found = -1L;
    long newest = -1L;
    Iterator snapshots = table.snapshots().iterator();
    while (snapshots.hasNext()) {
      Snapshot snapshot = (Snapshot) snapshots.next();
      boolean all = snapshot.summary() != null; // a v1 snapshot may have none
      Iterator keys = wanted.fieldNames();
      while (keys.hasNext() && all) {
        String key = (String) keys.next();
        all = at(wanted, key).asText().equals(snapshot.summary().get(key));
      }
      if (all && snapshot.timestampMillis() > newest) {
        found = snapshot.snapshotId();
        newest = snapshot.timestampMillis();
      }
    }
    return found;
  }

  // ---------------------------------------------------------------- Iceberg's own engine

  /**
   * Rewrites one planned group with Iceberg's Spark reader and writer, without committing. The runners are not
   * public, so they are called by reflection; `rewrite_data_files` itself runs the same ones for each group.
   */
  public String rewriteNatively(
      SparkSession spark, Table table, Scan scan, String requestJson) throws Exception {
    JsonNode request = JSON.readTree(requestJson);
    List tasks = new ArrayList();
    JsonNode sources = at(request, "sources");
    for (int i = 0; i < sources.size(); i++) {
      tasks.add(scan.tasks.get(at(sources, i).asText()));
    }
    RewriteFileGroup group = fileGroup(request, scan, tasks);
    Object runner = runner(spark, table, request);
    Method init = runner.getClass().getMethod("init", new Class[] {Map.class});
    init.setAccessible(true);
    init.invoke(runner, new Object[] {new HashMap()});
    Method run = runner.getClass().getMethod("rewrite", new Class[] {RewriteFileGroup.class});
    run.setAccessible(true);
    Set written;
    try {
      written = (Set) run.invoke(runner, new Object[] {group});
    } catch (java.lang.reflect.InvocationTargetException e) {
      throw (Exception) e.getCause();
    }
    ArrayNode rows = JSON.createArrayNode();
    Iterator files = written.iterator();
    while (files.hasNext()) {
      DataFile file = (DataFile) files.next();
      scan.outputs.put(file.location(), file);
      ObjectNode row = rows.addObject();
      row.put("path", file.location());
      row.put("bytes", file.fileSizeInBytes());
      row.put("rows", file.recordCount());
    }
    return rows.toString();
  }

  private static RewriteFileGroup fileGroup(JsonNode request, Scan scan, List tasks) throws Exception {
    Object builder = Class.forName("org.apache.iceberg.actions.ImmutableRewriteDataFiles$FileGroupInfo")
        .getMethod("builder", new Class[0]).invoke(null, new Object[0]);
    call(builder, "globalIndex", Integer.TYPE, Integer.valueOf(at(request, "number").asInt()));
    call(builder, "partitionIndex", Integer.TYPE, Integer.valueOf(0));
    call(builder, "partition", StructLike.class, scan.partitions.get(at(request, "partition").asInt()));
    Object info = builder.getClass().getMethod("build", new Class[0]).invoke(builder, new Object[0]);
    return (RewriteFileGroup) RewriteFileGroup.class.getConstructors()[0].newInstance(new Object[] {
      info, tasks, Integer.valueOf(at(request, "output_spec_id").asInt()),
      Long.valueOf(at(request, "max_file_bytes").asLong()), Long.valueOf(at(request, "split_bytes").asLong()),
      Integer.valueOf(at(request, "expected_files").asInt())});
  }

  private static void call(Object target, String name, Class type, Object value) throws Exception {
    target.getClass().getMethod(name, new Class[] {type}).invoke(target, new Object[] {value});
  }

  private static Object runner(SparkSession spark, Table table, JsonNode request) throws Exception {
    String strategy = at(request, "strategy").asText();
    String package_ = "org.apache.iceberg.spark.actions.";
    if ("binpack".equals(strategy)) {
      return construct(package_ + "SparkBinPackFileRewriteRunner",
          new Class[] {SparkSession.class, Table.class}, new Object[] {spark, table});
    }
    JsonNode names = at(request, "columns");
    if ("sort".equals(strategy) && names.size() == 0) {
      return construct(package_ + "SparkSortFileRewriteRunner",
          new Class[] {SparkSession.class, Table.class}, new Object[] {spark, table});
    }
    if ("sort".equals(strategy)) {
      return construct(package_ + "SparkSortFileRewriteRunner",
          new Class[] {SparkSession.class, Table.class, SortOrder.class},
          new Object[] {spark, table, sortOrder(table, names)});
    }
    List columns = new ArrayList();
    for (int i = 0; i < names.size(); i++) {
      columns.add(at(names, i).asText());
    }
    return construct(package_ + "SparkZOrderFileRewriteRunner",
        new Class[] {SparkSession.class, Table.class, List.class}, new Object[] {spark, table, columns});
  }

  /** Columns in the policy's form: `a`, `b desc`, `c asc nulls last`. */
  private static SortOrder sortOrder(Table table, JsonNode names) {
    SortOrder.Builder order = SortOrder.builderFor(table.schema());
    for (int i = 0; i < names.size(); i++) {
      String[] words = at(names, i).asText().toLowerCase().split("\\s+");
      String column = at(names, i).asText().split("\\s+")[0];
      List rest = Arrays.asList(words);
      boolean down = rest.contains("desc");
      NullOrder nulls = rest.contains("last") || (down && !rest.contains("first"))
          ? NullOrder.NULLS_LAST : NullOrder.NULLS_FIRST;
      if (down) {
        order.desc(column, nulls);
      } else {
        order.asc(column, nulls);
      }
    }
    return order.build();
  }

  private static Object construct(String name, Class[] types, Object[] values) throws Exception {
    Constructor constructor = Class.forName(name).getDeclaredConstructor(types);
    constructor.setAccessible(true);
    try {
      return constructor.newInstance(values);
    } catch (java.lang.reflect.InvocationTargetException e) {
      throw (Exception) e.getCause();
    }
  }

  /** Iceberg's own manifest rewrite: metadata only, clustered by partition. */
  public boolean rewriteManifests(
      SparkSession spark, Table table, int specId, long targetBytes, String summaryJson) throws Exception {
    JsonNode summary = JSON.readTree(summaryJson);
    if (hasTime(table)) {
      return foldManifests(table, specId, targetBytes, summary);
    }
    RewriteManifestsSparkAction action = SparkActions.get(spark).rewriteManifests(table);
    action.specId(specId);
    action.option("use-caching", "false");
    // The action reads its target size only from the table's properties; the policy's value overrides it here.
    Field target = RewriteManifestsSparkAction.class.getDeclaredField("targetManifestSizeBytes");
    target.setAccessible(true);
    target.setLong(action, targetBytes);
    Iterator keys = summary.fieldNames();
    while (keys.hasNext()) {
      String key = (String) keys.next();
      action.snapshotProperty(key, at(summary, key).asText());
    }
    return action.execute().rewrittenManifests().iterator().hasNext();
  }

  /** Whether the table has a column of type time. Spark has no such type, so Spark's reader of manifests rejects the whole table. */
  private static boolean hasTime(Table table) {
    Iterator schemas = table.schemas().values().iterator();
    while (schemas.hasNext()) {
      Iterator fields = TypeUtil.indexById(((org.apache.iceberg.Schema) schemas.next()).asStruct()).values().iterator();
      while (fields.hasNext()) {
        if (((Types.NestedField) fields.next()).type().typeId() == Type.TypeID.TIME) {
          return true;
        }
      }
    }
    return false;
  }

  /** The same with Iceberg's library alone, in the driver: data manifests in their existing order, not clustered. */
  private static boolean foldManifests(Table table, final int specId, long targetBytes, JsonNode summary)
      throws Exception {
    List manifests = table.currentSnapshot().dataManifests(table.io());
    int found = 0;
    long bytes = 0L;
    for (int i = 0; i < manifests.size(); i++) {
      ManifestFile manifest = (ManifestFile) manifests.get(i);
      if (manifest.partitionSpecId() == specId) {
        found++;
        bytes += manifest.length();
      }
    }
    // The plan also counts manifests of deletes. The library merges none of these, so the same rule is applied
    // to its count.
    long expected = (bytes + targetBytes - 1L) / targetBytes;
    if (found < 2 || expected * 2L > found) {
      return false;
    }
    RewriteManifests rewrite = table.rewriteManifests();
    Field target = rewrite.getClass().getDeclaredField("manifestTargetSizeBytes");
    target.setAccessible(true);
    target.setLong(rewrite, targetBytes);
    rewrite.clusterBy(new Function() {
      public Object apply(Object file) {
        return "all";
      }
    });
    rewrite.rewriteIf(new Predicate() {
      public boolean test(Object manifest) {
        return ((ManifestFile) manifest).partitionSpecId() == specId;
      }
    });
    Iterator keys = summary.fieldNames();
    while (keys.hasNext()) {
      String key = (String) keys.next();
      rewrite.set(key, at(summary, key).asText());
    }
    rewrite.commit();
    return true;
  }
}
